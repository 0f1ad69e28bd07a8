{{- /* Plain values in one line, with quotes where YAML would read something else. */ -}}

{{- define "scalar" -}}
{{- if kindIs "string" . -}}
{{- if and (regexMatch "^([A-Za-z/][A-Za-z0-9_./-]*|[1-9][0-9]*[A-Za-z]+|-{1,2}[a-z][a-z0-9-]*|--)$" .) (not (regexMatch "^(?i:true|false|yes|no|on|off|null|y|n)$" .)) -}}
{{ . }}
{{- else -}}
{{ quote . }}
{{- end -}}
{{- else -}}
{{ toJson . }}
{{- end -}}
{{- end }}

{{- define "inline" -}}
{{- if kindIs "map" . -}}
{ {{- range $index, $key := keys . | sortAlpha }}{{ if $index }}, {{ end }}{{ $key }}: {{ include "inline" (get $ $key) }}{{ end -}} }
{{- else if kindIs "slice" . -}}
[ {{- range $index, $each := . }}{{ if $index }}, {{ end }}{{ include "inline" $each }}{{ end -}} ]
{{- else -}}
{{ include "scalar" . }}
{{- end -}}
{{- end }}
