{{- define "fleet.labels" -}}
app.kubernetes.io/name: egress-fleet
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{/*
The size of an autoscaled pool, for as long as it was set otherwise than by scaling, for example by this chart before the pool
became an autoscaled one: what nobody writes any more would fall back to the API's default. Empty when the size belongs to who
scales. Argument: dict "root" $ "name" NAME.
*/}}
{{- define "fleet.inheritedReplicas" -}}
{{- $pool := lookup "crawl.example.com/v1alpha1" "ProxyPool" .root.Release.Namespace .name -}}
{{- $inherited := false -}}
{{- range dig "metadata" "managedFields" list $pool -}}
{{- if and (ne (default "" .subresource) "scale") (hasKey (dig "fieldsV1" "f:spec" dict .) "f:replicas") -}}
{{- $inherited = true -}}
{{- end -}}
{{- end -}}
{{- if $inherited -}}{{ int $pool.spec.replicas }}{{- end -}}
{{- end -}}
