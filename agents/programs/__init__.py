"""A program from workload to seconds: design space, trace, build, timing, check."""
