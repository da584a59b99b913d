"""From Dynamo to the engine: AOTAutograd, gradients, and calls of compiled graphs."""
