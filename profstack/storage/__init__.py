"""The recording on disk: its schema, the writer and the reader."""
