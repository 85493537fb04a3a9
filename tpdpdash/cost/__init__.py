"""What a layout costs: memory, compute, collectives and step time, as pure functions over scalars or float64 arrays."""
