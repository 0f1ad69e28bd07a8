"""Dual pods: a pod asks for accelerators and for a model, another one runs the model.

A *requester* is an ordinary pod with an annotation, scheduled and accounted for by Kubernetes as ever. The controller
binds it to an *instance* of its model in a *server pod*: one that sleeps is waked, else one is launched. What runs in a
server pod is our pool (`swap`), or one engine (`sleep`, `direct`).

    rules/       the controller's machine (`machine.py` has its numbered rules), and the requester's (`standing.py`)
    shell/       the API server, server pods and requesters, as the controller reaches them; the requester's ports
    cli/         dual-pods-controller, dual-pods-requester, dualctl

Nothing is kept outside the cluster: a controller that starts reads pods and asks those that run.
"""
