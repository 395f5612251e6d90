"""A network behind the Open Inference Protocol (KServe v2, as Triton and SONIC clients speak it) over HTTP."""
