{{- define "devicequota.name" -}}
{{ .Values.nameOverride | default .Chart.Name | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "devicequota.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains (include "devicequota.name" .) .Release.Name -}}
{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name (include "devicequota.name" .) | trunc 50 | trimSuffix "-" }}
{{- end -}}
{{- end }}

{{- define "devicequota.selectorLabels" -}}
app.kubernetes.io/name: {{ include "devicequota.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "devicequota.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "devicequota.selectorLabels" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | trunc 63 | quote }}
app.kubernetes.io/component: manager
app.kubernetes.io/part-of: devicequota
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/*
Metadata of an object: (list context name), and optionally a dict with namespaced (default true), namespace, labels, annotations.
*/}}
{{- define "devicequota.metadata" -}}
{{- $ := index . 0 }}
{{- $o := dict }}
{{- if gt (len .) 2 }}{{ $o = index . 2 }}{{ end -}}
name: {{ index . 1 }}
{{- if ne (toString (get $o "namespaced")) "false" }}
namespace: {{ get $o "namespace" | default $.Release.Namespace }}
{{- end }}
labels:
  {{- merge (dict) (get $o "labels" | default dict) (include "devicequota.labels" $ | fromYaml) | toYaml | nindent 2 }}
{{- with merge (dict) (get $o "annotations" | default dict) $.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The cluster: openshift or kubernetes. */}}
{{- define "devicequota.platform" -}}
{{- if ne .Values.platform "auto" -}}
{{ .Values.platform }}
{{- else if .Capabilities.APIVersions.Has "security.openshift.io/v1" -}}
openshift
{{- else -}}
kubernetes
{{- end -}}
{{- end }}

{{- define "devicequota.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "devicequota.fullname" .) }}
{{- else -}}
{{ .Values.serviceAccount.name | default "default" }}
{{- end -}}
{{- end }}

{{- define "devicequota.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "devicequota.tlsSecret" -}}
{{ .Values.tls.secretName | default (printf "%s-tls" (include "devicequota.fullname" .)) }}
{{- end }}

{{/* All exempt namespaces, sorted, as JSON list. */}}
{{- define "devicequota.exemptNamespaces" -}}
{{- $all := append .Values.exemptNamespaces .Release.Namespace }}
{{- if eq (include "devicequota.platform" .) "openshift" }}
{{- $all = concat $all (list "openshift" "openshift-infra" "openshift-node") }}
{{- end }}
{{- $all | uniq | sortAlpha | toJson }}
{{- end }}

{{/* The value of .Values.webhooks for each webhook, by its name. */}}
{{- define "devicequota.webhookValues" -}}
resourceclaims.validate.devicequota.io: resourceClaims
resourceclaimtemplates.validate.devicequota.io: resourceClaimTemplates
extendedresources.pods.validate.devicequota.io: podExtendedResources
resourceclaims.pods.validate.devicequota.io: podResourceClaims
clusterresourcequotas.validate.devicequota.io: clusterResourceQuotas
resourceclaims.mutate.devicequota.io: mutateResourceClaims
resourceclaimtemplates.mutate.devicequota.io: mutateResourceClaimTemplates
{{- end }}

{{/* Whether a webhook configuration of the kind has any webhook: "true" or "". */}}
{{- define "devicequota.hasWebhooks" -}}
{{- $ := index . 0 }}
{{- $mutating := eq (index . 1) "MutatingWebhookConfiguration" }}
{{- range $name, $key := include "devicequota.webhookValues" $ | fromYaml }}
{{- if and (eq $mutating (contains ".mutate." $name)) (index $.Values.webhooks $key).enabled }}true{{ end }}
{{- end }}
{{- end }}

{{/* The manager's configuration file, without type. */}}
{{- define "devicequota.config" -}}
{{- $timings := dict "default" (list "15s" "10s" "2s") "openshift" (list "137s" "107s" "26s") }}
{{- $times := get $timings .Values.leaderElection.preset }}
{{- $name := include "devicequota.fullname" . -}}
namespace: {{ .Release.Namespace }}
exemptNamespaces: {{ include "devicequota.exemptNamespaces" . }}
platform: {{ .Values.platform }}
resourceApiVersion: {{ .Values.resourceAPIVersion }}
enforcement: {{ .Values.enforcement }}
allocation: {{ .Values.allocation | quote }}
adminAccess: {{ .Values.adminAccess }}
{{- with .Values.schedulers }}
schedulers: {{ toJson . }}
{{- end }}
{{- with .Values.claimControllers }}
claimControllers: {{ toJson . }}
{{- end }}
maxInFlight: {{ .Values.maxInFlight }}
webhookTimeout: {{ .Values.webhookTimeout }}
webhookBindAddress: ":{{ .Values.webhookPort }}"
healthProbeBindAddress: ":{{ .Values.healthPort }}"
metricsBindAddress: {{ ternary (printf ":%v" .Values.metrics.port) "0" .Values.metrics.enabled | quote }}
metricsSecure: {{ .Values.metrics.secure }}
metricsProjectSeries: {{ .Values.metrics.projectSeries }}
{{- with .Values.tracing.endpoint }}
tracingEndpoint: {{ . | quote }}
tracingSamplingRatePerMillion: {{ $.Values.tracing.samplingRatePerMillion }}
{{- end }}
{{- with .Values.pprofBindAddress }}
pprofBindAddress: {{ . | quote }}
{{- end }}
tlsMinVersion: {{ .Values.tls.minVersion | quote }}
{{- if eq .Values.tls.mode "selfSigned" }}
tlsMode: self-signed
tlsSecret: {{ include "devicequota.tlsSecret" . }}
tlsService: {{ $name }}
{{- if include "devicequota.hasWebhooks" (list . "ValidatingWebhookConfiguration") }}
validatingWebhookConfiguration: {{ $name }}
{{- end }}
{{- if include "devicequota.hasWebhooks" (list . "MutatingWebhookConfiguration") }}
mutatingWebhookConfiguration: {{ $name }}
{{- end }}
{{- else }}
tlsMode: files
certDir: /var/run/devicequota/certs
{{- end }}
leaderElect: {{ .Values.leaderElection.enabled }}
leaderElectLeaseName: {{ $name }}
leaderElectLeaseDuration: {{ .Values.leaderElection.leaseDuration | default (index $times 0) }}
leaderElectRenewDeadline: {{ .Values.leaderElection.renewDeadline | default (index $times 1) }}
leaderElectRetryPeriod: {{ .Values.leaderElection.retryPeriod | default (index $times 2) }}
shutdownDelay: {{ .Values.shutdown.delay }}
shutdownTimeout: {{ .Values.shutdown.timeout }}
logFormat: {{ .Values.log.format }}
logLevel: {{ .Values.log.level }}
{{- end }}
