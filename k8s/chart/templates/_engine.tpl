{{- /* One engine's container. What is the same for both is explained at the first. */ -}}

{{- define "engine-image" -}}
{{ .Values.engine.image | default (include "sidecar-image" .) }}
{{- end }}

{{- define "host-device-names" -}}
{{- range $n := until (int .Values.devices.count) }}{{ if $n }},{{ end }}host:{{ $n }}{{ end -}}
{{- end }}

{{- define "engine-command" -}}
{{- $program := .Values.engine.copy | ternary (list "python3" "-m" "engine_shim") (list "engine-shim") -}}
{{- $listen := .Values.gateway.enabled | ternary (list) (list "--listen" ":8000") -}}
{{- $drain := list "--drain-s" (toString .Values.engine.drainSeconds) -}}
{{ include "inline" (concat $program (list "--engine" .Values.engine.kind "--probe" (printf ":%d" (int .probe))) $listen $drain (list "--")) }}
{{- end }}

{{- define "engine-arguments" -}}
{{- $model := eq .Values.engine.kind "vllm" | ternary (list .Values.model.name) (list) -}}
{{ include "inline" (concat $model .Values.engine.arguments) }}
{{- end }}

{{- define "engine" -}}
{{- $first := eq .id "a" -}}
{{- $in_place := eq .Values.restart "in-place" -}}
- name: engine-{{ .id }}
  image: {{ include "engine-image" . }}
  imagePullPolicy: {{ .Values.engine.pullPolicy }}
  command: {{ include "engine-command" . }}
{{- if not $first }}
  args: *arguments # the same: a standby has to take each request that the other one takes
{{- else }}
  args: &arguments {{ include "engine-arguments" . }}
{{- end }}
  env:
    - {name: FAILOVER_RUN_DIR, value: /run/failover/pair}
    - {name: FAILOVER_LOG_FORMAT, value: json}
{{- if $first }}
{{- if $in_place }}
    # The shim, PID 1, starts its engine again. If the container ended instead, the pod would be NotReady for
    # all of the engine's Init after each failover, and kubelet's back-off would eat the redundancy.
{{- else }}
    # The container ends with its engine, as the specification's Decision 2 has it: after each failover the pod is
    # NotReady for all of the engine's Init, and for kubelet's back-off.
{{- end }}
{{- end }}
    - {name: FAILOVER_RESTART, value: {{ .Values.restart }}}
{{- if eq .Values.devices.kind "host" }}
    {{- include "host-devices" . | nindent 4 }}
{{- end }}
    - {name: ENGINE_ID, value: {{ .id }}}
{{- if $first }}
    - {name: ENGINE_ROLE, value: primary} # loads the weights if no engine has
{{- else }}
    - {name: ENGINE_ROLE, value: shadow} # only ever reads them: two writers of several GPUs could wait for each other
{{- end }}
{{- if $first }}
    # The root can't be written, and the user has no name and no home in the image: each cache is named.
{{- end }}
    {{- include "engine-places" . | trim | nindent 4 }}
  ports:
    - {name: probe-{{ .id }}, containerPort: {{ .probe }}}{{ if $first }} # /live /startup /ready /state /metrics{{ else }} # one network for all containers: not 9000 again{{ end }}
{{- if and $first (not .Values.gateway.enabled) }}
    - {name: http, containerPort: 8000} # the engine that is awake listens there, so it is declared once
{{- end }}
{{- if and $first $in_place }}
  # In place, /startup passes with the shim's first moment, also while the engine loads.
{{- else if $first }}
  # /startup passes when Init is over: two hours for it, as the specification's Decision 2 has it.
{{- end }}
  startupProbe:
    httpGet: {path: /startup, port: probe-{{ .id }}}
    periodSeconds: {{ $in_place | ternary 1 10 }}
    timeoutSeconds: 2
    failureThreshold: {{ $in_place | ternary 60 720 }}
  livenessProbe:
    httpGet: {path: /live, port: probe-{{ .id }}}
    periodSeconds: 5
    timeoutSeconds: 2
    failureThreshold: 3
    terminationGracePeriodSeconds: 2{{ if $first }} # a shim that doesn't answer doesn't mind SIGTERM either{{ end }}
{{- if $first }}
  # Services need seconds to drop a pod that ends, and an engine that drains answers new requests with 503.
  # So it serves on for these seconds before it hears of its end. When a liveness probe has failed, that
  # probe's grace cuts it off.
{{- end }}
  lifecycle:
    preStop: {sleep: {seconds: {{ .Values.engine.preStopSeconds }}}}
  resources:
{{- if gt (int .Values.gpus.count) 0 }}
    claims: [{name: gpus}]
{{- end }}
    requests: {{ include "inline" .Values.engine.resources.requests }}
{{- if $first }}
    # Out of memory ends the whole container (kubelet sets memory.oom.group on cgroup v2), the shim with its
    # engine, and the pod is NotReady until it is back. With kubelet's singleProcessOOMKill: true (from 1.32)
    # only the one process ends.
{{- end }}
    limits: {{ include "inline" .Values.engine.resources.limits }}
  securityContext: *locked
  volumeMounts:
    - {name: run, mountPath: /run/failover}
{{- if eq .Values.devices.kind "host" }}
    - {name: devices, mountPath: /run/devices}
{{- end }}
{{- if .Values.engine.copy }}
    - {name: gpu-failover, mountPath: /gpu-failover, readOnly: true}
{{- end }}
    - {name: shm-{{ .id }}, mountPath: /dev/shm}
    - {name: home-{{ .id }}, mountPath: /home/vllm}
    - {name: tmp-{{ .id }}, mountPath: /tmp}
{{- if include "has-claim" . }}
    {{- include "models-mount" . | nindent 4 }}
{{- end }}
{{- end }}
