"""Plan to typed launch arguments: one file per engine, held to the flags that the engine's own parser accepts."""
