"""The pages of reports and e-graphs in a headless browser."""
