{{/* The cluster: openshift or kubernetes. */}}
{{- define "devicequota-crds.platform" -}}
{{- if ne .Values.platform "auto" -}}
{{ .Values.platform }}
{{- else if .Capabilities.APIVersions.Has "security.openshift.io/v1" -}}
openshift
{{- else -}}
kubernetes
{{- end -}}
{{- end }}

{{- define "devicequota-crds.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: devicequota
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: crds
app.kubernetes.io/part-of: devicequota
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}
