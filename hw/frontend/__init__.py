"""The front end for clients: the Open Inference Protocol over HTTP, in a process without torch, before the router's."""
