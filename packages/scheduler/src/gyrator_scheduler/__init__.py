"""From Loop IR to Kernel IR and Wrapper IR: fusion, order, memory and partitions."""

__version__ = "0.1.0"
