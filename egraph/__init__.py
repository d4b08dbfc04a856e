"""What a graph is and what it may become: op table, graph, rules' type, egglog lowering, saturation, read-only view."""
