"""Join what the layers saw: the only place that knows keys of more than one tool."""
