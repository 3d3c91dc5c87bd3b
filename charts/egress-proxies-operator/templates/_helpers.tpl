{{/* The name everything starts with. It does not depend on the release: other programs know the Service and the Deployments by name. */}}
{{- define "egress.fullname" -}}
{{- default "egress-proxies-operator" .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "egress.core" -}}{{ include "egress.fullname" . }}-controller-manager{{- end -}}

{{- define "egress.tokenSecret" -}}{{ default "discovery-token" .Values.api.existingTokenSecret }}{{- end -}}

{{- define "egress.image" -}}
{{- $tag := default .Chart.AppVersion .Values.image.tag -}}
{{ .Values.image.repository }}:{{ $tag }}{{ with .Values.image.digest }}@{{ . }}{{ end }}
{{- end -}}

{{/* Labels of everything. Argument: dict "root" $ "component" "core". */}}
{{- define "egress.labels" -}}
{{ include "egress.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: egress-proxies-operator
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end -}}

{{- define "egress.selector" -}}
app.kubernetes.io/name: egress-proxies-operator
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* The text of a file that was copied from config/, with this installation's namespace and names. */}}
{{- define "egress.file" -}}
{{- $fullname := include "egress.fullname" .root -}}
{{- .root.Files.Get .path
  | replace "system:serviceaccount:egress-proxies-operator-system:egress-proxies-operator-" (printf "system:serviceaccount:%s:%s-" .root.Release.Namespace $fullname)
  | replace "name: egress-proxies-operator-" (printf "name: %s-" $fullname)
  | replace "policyName: egress-proxies-operator-" (printf "policyName: %s-" $fullname) -}}
{{- end -}}

{{/* Arguments that all managers share. */}}
{{- define "egress.commonArgs" -}}
- --controller-name={{ .Values.controllerName }}
- --log-level={{ .Values.logLevel }}
{{- with .Values.watchNamespaces }}
- --watch-namespaces={{ join "," . }}
{{- end }}
{{- with .Values.clusterID }}
- --cluster-id={{ . }}
{{- end }}
{{- end -}}

{{/* What all pods share. Argument: dict "root" $ "component" "core". */}}
{{- define "egress.podMetadata" -}}
labels:
  {{- include "egress.selector" . | nindent 2 }}
  {{- with .root.Values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  kubectl.kubernetes.io/default-container: manager
  {{- with .root.Values.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "egress.podSpec" -}}
terminationGracePeriodSeconds: 30
securityContext:
  runAsNonRoot: true
  seccompProfile:
    type: RuntimeDefault
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{/* What all containers share. */}}
{{- define "egress.container" -}}
name: manager
image: {{ include "egress.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
env:
  - name: POD_NAMESPACE
    valueFrom:
      fieldRef:
        fieldPath: metadata.namespace
  {{- if .peers }}
  # Where the other replicas ask this one when it leads.
  - name: POD_IP
    valueFrom:
      fieldRef:
        fieldPath: status.podIP
  {{- end }}
  {{- with .Values.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
livenessProbe:
  httpGet:
    path: /healthz
    port: probes
  initialDelaySeconds: 10
  periodSeconds: 20
  timeoutSeconds: 5
readinessProbe:
  httpGet:
    path: /readyz
    port: probes
  periodSeconds: 5
  timeoutSeconds: 5
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end -}}
