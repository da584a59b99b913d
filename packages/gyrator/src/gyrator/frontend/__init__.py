"""Between Dynamo and the engine: AOTAutograd, gradients, and calls of what was compiled."""
