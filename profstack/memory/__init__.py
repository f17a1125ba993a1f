"""Host and device memory: reading it, tracing it by line, and turning readings into rows."""
