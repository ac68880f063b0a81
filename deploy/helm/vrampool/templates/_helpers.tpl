{{- define "vrampool.fullname" -}}
{{- if contains "vrampool" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-vrampool" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "vrampool.selector" -}}
app.kubernetes.io/name: vrampool
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "vrampool.labels" -}}
{{ include "vrampool.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "vrampool.secretName" -}}
{{- .Values.secret.existing | default (include "vrampool.fullname" .) }}
{{- end }}

{{- define "vrampool.priorityClassName" -}}
{{- .Values.priorityClass.name | default (printf "%s-search" (include "vrampool.fullname" .)) }}
{{- end }}

{{- define "vrampool.image" -}}
{{- $image := index . 0 }}{{ $chart := index . 1 -}}
{{ printf "%s:%s" $image.repository ($image.tag | default $chart.AppVersion) }}
{{- end }}

{{/* What every pod's security is: no user rights, no capabilities, no token, the default seccomp profile. */}}
{{- define "vrampool.podSecurity" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: {{ . }}
  runAsGroup: {{ . }}
  fsGroup: {{ . }}
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "vrampool.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* The pool's addresses and its secret, for coordinator and workers. */}}
{{- define "vrampool.poolEnv" -}}
- {name: VRAMPOOL_POOL, value: {{ .Values.pool | quote }}}
- name: VRAMPOOL_REDIS
  valueFrom: {secretKeyRef: {name: {{ include "vrampool.secretName" . }}, key: redis-url}}
- name: VRAMPOOL_STORAGE
  valueFrom: {secretKeyRef: {name: {{ include "vrampool.secretName" . }}, key: storage-url}}
- {name: VRAMPOOL_SECRET_FILE, value: /etc/vrampool/secret}
- {name: VRAMPOOL_STATE_DIR, value: /var/lib/vrampool}
{{- end }}

{{- define "vrampool.secretVolume" -}}
- name: secret
  secret:
    secretName: {{ include "vrampool.secretName" . }}
    defaultMode: 0440
    items: [{key: secret, path: secret}]
{{- end }}

{{/* Probes ask the process itself; neither Redis nor the database has a say in whether it lives. */}}
{{- define "vrampool.probes" -}}
startupProbe:
  exec: {command: [vrampool, health]}
  periodSeconds: 5
  timeoutSeconds: 10
  failureThreshold: 60
livenessProbe:
  exec: {command: [vrampool, health]}
  periodSeconds: 20
  timeoutSeconds: 10
  failureThreshold: 6
readinessProbe:
  exec: {command: [vrampool, health, --ready]}
  periodSeconds: 10
  timeoutSeconds: 10
  failureThreshold: 3
{{- end }}

{{/* A pool of cards: the defaults with what it says itself. */}}
{{- define "vrampool.workerPool" -}}
{{- mergeOverwrite (deepCopy (index . 0).Values.workers.defaults) (index . 1 | default dict) | toYaml }}
{{- end }}

{{- define "vrampool.terminationGraceSeconds" -}}
{{- max 30 (add .drainSeconds .graceSeconds 30) }}
{{- end }}
