"""The shape of the two kinds of the Prometheus operator that are shipped here, as far as they are used.

The operator's own definitions are on a cluster that has it, and in no library. A field that isn't listed here may
exist: add it, from https://prometheus-operator.dev/docs/api-reference/api/.
"""

from typing import Any

GROUP = "monitoring.coreos.com"
DURATION = r"^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$"


def _object(required: tuple[str, ...] = (), /, **fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(required), "additionalProperties": False}


def _list(of: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": of}


_TEXT: dict[str, Any] = {"type": "string"}
_TEXTS: dict[str, Any] = {"type": "object", "additionalProperties": _TEXT}
_NUMBER: dict[str, Any] = {"type": "integer", "minimum": 0}
_FLAG: dict[str, Any] = {"type": "boolean"}
_DURATION: dict[str, Any] = {"type": "string", "pattern": DURATION, "minLength": 1}
_METADATA: dict[str, Any] = {"$ref": "https://kubernetes.io/api/_definitions.json#/$defs/"
                             "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}  # fmt: skip
_SELECTOR: dict[str, Any] = {"$ref": "https://kubernetes.io/api/_definitions.json#/$defs/"
                             "io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector"}  # fmt: skip
_NAMESPACES = _object(any=_FLAG, matchNames=_list(_TEXT))
_ACTIONS = ("replace", "keep", "drop", "hashmod", "labelmap", "labeldrop", "labelkeep", "lowercase", "uppercase",
            "keepequal", "dropequal")  # fmt: skip
_RELABELING = _object(
    sourceLabels=_list(_TEXT),
    separator=_TEXT,
    targetLabel=_TEXT,
    regex=_TEXT,
    modulus=_NUMBER,
    replacement=_TEXT,
    action={"type": "string", "enum": [*_ACTIONS, *(word.capitalize() for word in _ACTIONS)]},
)
_ENDPOINT = {
    "port": _TEXT,
    "path": {"type": "string", "pattern": "^/"},
    "scheme": {"type": "string", "enum": ["http", "https", "HTTP", "HTTPS"]},
    "interval": _DURATION,
    "scrapeTimeout": _DURATION,
    "honorLabels": _FLAG,
    "honorTimestamps": _FLAG,
    "filterRunning": _FLAG,
    "params": {"type": "object", "additionalProperties": _list(_TEXT)},
    "relabelings": _list(_RELABELING),
    "metricRelabelings": _list(_RELABELING),
}
_HEAD = {"apiVersion": _TEXT, "kind": _TEXT, "metadata": _METADATA}
_MONITOR = {
    "selector": _SELECTOR,
    "namespaceSelector": _NAMESPACES,
    "jobLabel": _TEXT,
    "podTargetLabels": _list(_TEXT),
    "sampleLimit": _NUMBER,
    "targetLimit": _NUMBER,
    "labelLimit": _NUMBER,
}

SCHEMAS: dict[tuple[str, str], dict[str, Any]] = {
    (f"{GROUP}/v1", "PodMonitor"): _object(
        ("metadata", "spec"),
        **_HEAD,
        spec=_object(
            ("selector", "podMetricsEndpoints"),
            podMetricsEndpoints={**_list(_object(**_ENDPOINT, portNumber=_NUMBER)), "minItems": 1},
            **_MONITOR,
        ),
    ),
    (f"{GROUP}/v1", "ServiceMonitor"): _object(
        ("metadata", "spec"),
        **_HEAD,
        spec=_object(
            ("selector", "endpoints"),
            endpoints={**_list(_object(**_ENDPOINT, targetPort={"type": ["string", "integer"]})), "minItems": 1},
            targetLabels=_list(_TEXT),
            **_MONITOR,
        ),
    ),
    (f"{GROUP}/v1", "PrometheusRule"): _object(
        ("metadata", "spec"),
        **_HEAD,
        spec=_object(
            ("groups",),
            groups=_list(
                _object(
                    ("name", "rules"),
                    name={"type": "string", "minLength": 1},
                    interval=_DURATION,
                    limit=_NUMBER,
                    labels=_TEXTS,
                    rules=_list(
                        _object(
                            ("expr",),
                            alert={"type": "string", "minLength": 1},
                            record={"type": "string", "pattern": "^[a-zA-Z_:][a-zA-Z0-9_:]*$"},
                            expr={"type": ["string", "integer"], "minLength": 1},
                            keep_firing_for=_DURATION,
                            labels=_TEXTS,
                            annotations=_TEXTS,
                            **{"for": _DURATION},
                        )
                    ),
                )
            ),
        ),
    ),
}  # fmt: skip
