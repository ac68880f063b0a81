"""The parent's hold on the trials' processes: launch, hand over, watch, end. What runs in them is in `child`."""
