"""Send real load to what is deployed and report what it saw."""
