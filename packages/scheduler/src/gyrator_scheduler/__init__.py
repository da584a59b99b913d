"""From Loop IR to Kernel IR and Wrapper IR: fusion, order, memory and partitions."""
