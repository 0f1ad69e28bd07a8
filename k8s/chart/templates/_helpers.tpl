{{- /* What several templates say. */ -}}

{{- define "labels" -}}
app.kubernetes.io/name: gpu-failover
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "sidecar-image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "claim" -}}
{{ .Values.model.claim | default (printf "%s-models" .Release.Name) }}
{{- end }}

{{- define "has-claim" -}}
{{ if or .Values.model.claim .Values.model.size }}yes{{ end }}
{{- end }}

{{- /* What holds for the pod as a whole, whatever its containers. */ -}}
{{- define "pod-settings" -}}
# A Service named vllm would set VLLM_PORT=tcp://..., and vLLM ends with that. FAILOVER_* are our own variables.
enableServiceLinks: false
automountServiceAccountToken: false # nothing here talks to the API server
{{- with .Values.serviceAccount }}
serviceAccountName: {{ . }}
{{- end }}
{{- if eq .Values.layout "pod" }}
# PID 1 of an engine's container has to be its shim: when that ends, the kernel ends all that the engine was.
shareProcessNamespace: false
{{- end }}
# {{ .Values.engine.preStopSeconds }} s until Services have dropped the pod, {{ .Values.engine.drainSeconds }} s for streams to finish, and then the rest of the pod.
terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
{{- with .Values.priorityClass }}
priorityClassName: {{ . }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: {{ .Values.user }} # one user for all: sockets are 0600, directories 0700
  runAsGroup: {{ .Values.user }}
  fsGroup: {{ .Values.user }}
  fsGroupChangePolicy: OnRootMismatch # or kubelet walks through all of a model's volume at each start
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.pullSecrets }}
imagePullSecrets: {{ include "inline" . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{ include "inline" . }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
{{- range . }}
  - {{ include "inline" . }}
{{- end }}
{{- end }}
{{- end }}

{{- define "sidecar-container" -}}
image: {{ include "sidecar-image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{- define "locked" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* The init container that brings gpu-failover into a stock image. */ -}}
{{- define "copy" -}}
# The engines run a stock image. gpu-failover is pure Python, and what it needs there comes with vLLM (msgspec,
# nvidia-ml-py, prometheus-client, cuda-bindings), so it is copied to where PYTHONPATH names it. With the files'
# times, or the bytecode beside them would not count; into a directory of its own, because the mount is root's.
- name: gpu-failover
  image: {{ include "sidecar-image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [cp, -rLp, /opt/gpu-failover/packages, /gpu-failover/]
  resources:
    requests: {cpu: 50m, memory: 64Mi}
    limits: {memory: 128Mi}
  securityContext:
    {{- include "locked" . | nindent 4 }}
  volumeMounts:
    - {name: gpu-failover, mountPath: /gpu-failover}
{{- end }}

{{- /* The root can't be written: every place that vLLM and what is below it writes to. */ -}}
{{- define "engine-places" -}}
{{- if .Values.engine.copy }}
- {name: PYTHONPATH, value: /gpu-failover/packages}
{{- end }}
- {name: USER, value: vllm}
- {name: HOME, value: /home/vllm}
- {name: XDG_CACHE_HOME, value: /home/vllm/.cache}
- {name: HF_HOME, value: {{ ternary "/models" "/home/vllm/.cache/huggingface" (and (eq (include "has-claim" .) "yes") (not .Values.model.readOnly)) }}}
{{- if .Values.model.readOnly }}
- {name: HF_HUB_OFFLINE, value: "1"}
{{- end }}
- {name: VLLM_CACHE_ROOT, value: /home/vllm/.cache/vllm}
- {name: TORCHINDUCTOR_CACHE_DIR, value: /home/vllm/.cache/inductor}
- {name: TRITON_CACHE_DIR, value: /home/vllm/.cache/triton}
- {name: CUDA_CACHE_PATH, value: /home/vllm/.cache/cuda}
{{- range .Values.engine.env }}
- {{ include "inline" . }}
{{- end }}
{{- end }}

{{- define "models-volume" -}}
- name: models
  persistentVolumeClaim: {claimName: {{ include "claim" . }}{{ if .Values.model.readOnly }}, readOnly: true{{ end }}}
{{- end }}

{{- define "models-mount" -}}
- {name: models, mountPath: /models{{ if .Values.model.readOnly }}, readOnly: true{{ end }}}
{{- end }}

{{- define "host-devices" -}}
- {name: FAILOVER_HOST_DEVICES, value: /run/devices/host}
{{- end }}
