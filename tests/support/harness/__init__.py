"""The do-no-harm harness: scripts run plain and under `profstack run`, and compared."""
