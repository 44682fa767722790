"""Pictures of what darner knows, as SVG that needs nothing to be drawn."""
