"""TensorRT: graphs to plans for the GPU of this machine, and plans run.

Building is `PlanBuilder.build` of a `BuildJob`: it runs `child` as a process of its own, which compiles (`build`),
writes the plan and says on a pipe how far it is. Only `build`, `network`, `timing_cache` and what runs plans import the
bindings, by way of `api`; everything else here can be imported where there are none.
"""
