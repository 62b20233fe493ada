"""The exercises, one module each, named by its id. The notebooks' sources say where each stands in the course."""
