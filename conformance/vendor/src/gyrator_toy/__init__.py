"""The toy device and its Gyrator target."""
