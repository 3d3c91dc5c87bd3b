{{- define "fleet.labels" -}}
app.kubernetes.io/name: egress-fleet
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{/*
The size of an autoscaled pool that has to be written as it was found; empty when none has to be. Once a release has written a
size, as before a pool became an autoscaled one, the next one that leaves it out takes it away, and the API's default comes back:
helm that merges by itself goes by what it wrote before, whoever has scaled since. So only a pool that the last release gave no
size, which an annotation tells, goes on without one. Argument: dict "root" $ "name" NAME.
*/}}
{{- define "fleet.foundReplicas" -}}
{{- with lookup "crawl.example.com/v1alpha1" "ProxyPool" .root.Release.Namespace .name -}}
{{- if ne (dig "metadata" "annotations" "fleet.crawl.example.com/size" "" .) "not-written" -}}
{{ int .spec.replicas }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
Fails when two objects of a kind have one name: helm would write the one over the other and call it a success. Argument:
dict "kind" KIND "list" LIST.
*/}}
{{- define "fleet.distinct" -}}
{{- $names := dict -}}
{{- range .list -}}
{{- if hasKey $names .name -}}
{{- fail (printf "there are two of kind %s with the name %s; each needs a name of its own" $.kind .name) -}}
{{- end -}}
{{- $_ := set $names .name true -}}
{{- end -}}
{{- end -}}
