"""Constants from measurements: reads benchmark results, judges predictions, fits, and says what the data cannot tell.

- `rows`: one measured configuration; `readers`, `exports`: files of benchmark tools become rows
- `predict`: what the model says of a row; `constants`: the constants that a prediction depends on, by name
- `fit`: constants that agree with the rows; `identify`: what the rows cannot tell
- `score`: errors by group; `bands`: what part of unseen rows lies within which factor
- `file`: the calibration file that a spec names
- `probe`: what is measured on a device; `probe_torch`: how; `probe_fit`: its constants; `probe_file`: their calibration file
"""
