"""Physics as pure functions on numpy arrays, SI units. F-numbers are the formulas of docs/physics.md."""
