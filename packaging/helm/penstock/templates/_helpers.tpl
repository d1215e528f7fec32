{{- define "penstock.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "penstock.selector" -}}
app.kubernetes.io/name: penstock
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "penstock.labels" -}}
{{ include "penstock.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "penstock.replicas" -}}
{{- if .Values.cluster.enabled -}}{{ .Values.cluster.nodes }}{{- else -}}1{{- end -}}
{{- end -}}

{{/* Whether the nodes run the servers of the storage engine themselves; empty if not. */}}
{{- define "penstock.hasOwnEngine" -}}
{{- if and .Values.cluster.enabled (not .Values.cluster.engineSecretName) -}}true{{- end -}}
{{- end -}}

{{- define "penstock.podDomain" -}}
{{ include "penstock.name" . }}-nodes.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end -}}

{{/* NAME=HOST of each node, separated by commas. */}}
{{- define "penstock.peers" -}}
{{- $name := include "penstock.name" . -}}
{{- $domain := include "penstock.podDomain" . -}}
{{- $peers := list -}}
{{- range $i := until (int .Values.cluster.nodes) -}}
{{- $peers = append $peers (printf "%s-%d=%s-%d.%s" $name $i $name $i $domain) -}}
{{- end -}}
{{- join "," $peers -}}
{{- end -}}

{{/* The names of a certificate that a pod creates. */}}
{{- define "penstock.certificateNames" -}}
{{- $name := include "penstock.name" . -}}
{{- $domain := include "penstock.podDomain" . -}}
{{- $service := printf "%s.%s.svc" $name .Release.Namespace -}}
{{- $names := list "localhost" "127.0.0.1" $name (printf "%s.%s" $name .Release.Namespace) $service (printf "%s.%s" $service .Values.clusterDomain) -}}
{{- range $i := until (int (include "penstock.replicas" .)) -}}
{{- $names = append $names (printf "%s-%d.%s" $name $i $domain) -}}
{{- end -}}
{{- join "," (concat $names .Values.tls.names) -}}
{{- end -}}

{{- define "penstock.clusterSecretName" -}}
{{- .Values.cluster.secretName | default (printf "%s-cluster" (include "penstock.name" .)) -}}
{{- end -}}

{{/* The ports of clients: name and number of each front end that is on. */}}
{{- define "penstock.clientPorts" -}}
- {name: native, port: {{ .Values.ports.native }}}
- {name: http, port: {{ .Values.ports.http }}}
{{- with .Values.ports.amqp }}
- {name: amqp, port: {{ . }}}
{{- end }}
{{- with .Values.ports.mqtt }}
- {name: mqtt, port: {{ . }}}
{{- end }}
{{- end -}}
