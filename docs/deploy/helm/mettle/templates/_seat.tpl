{{/* A TOML value: a string in quotes, whole numbers without an exponent. */}}
{{- define "mettle.toml" -}}
{{- if kindIs "string" . -}}{{ . | quote }}
{{- else if kindIs "float64" . -}}{{- if eq . (floor .) -}}{{ . | int64 }}{{- else -}}{{ . }}{{- end -}}
{{- else -}}{{ . }}
{{- end -}}
{{- end -}}

{{/* A table of the settings file: its name and its keys. */}}
{{- define "mettle.table" -}}
{{- if .keys }}
[{{ .name }}]
{{- range $key, $value := .keys }}
{{ $key }} = {{ include "mettle.toml" $value }}
{{- end }}
{{ end -}}
{{- end -}}

{{- define "mettle.labels" -}}
app.kubernetes.io/name: mettle
app.kubernetes.io/instance: {{ .release }}
app.kubernetes.io/component: {{ .role }}
mettle/seat: {{ .name }}
{{- end -}}

{{/* Everything of one seat: settings, pod, service, network policy. */}}
{{- define "mettle.seat" -}}
{{- $values := .root.Values -}}
{{- $defaults := $values.defaults -}}
{{- $full := printf "%s-%s-%s" .root.Release.Name .role .name -}}
{{- if gt (len $full) 52 -}}{{- fail (printf "%s is longer than the 52 characters that a StatefulSet's pods leave: choose a shorter name" $full) -}}{{- end -}}
{{- $labels := dict "release" .root.Release.Name "role" .role "name" .name -}}
{{- $settings := include "mettle.settings" . -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ $full }}
  labels: {{- include "mettle.labels" $labels | nindent 4 }}
data:
  settings.toml: |
    {{- $settings | trim | nindent 4 }}
---
apiVersion: v1
kind: Service
metadata:
  name: {{ $full }}
  labels: {{- include "mettle.labels" $labels | nindent 4 }}
spec:
  clusterIP: None
  selector: {{- include "mettle.labels" $labels | nindent 4 }}
  ports:
    - {name: metrics, port: {{ $values.metrics.port }}, targetPort: metrics}
---
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ $full }}
  labels: {{- include "mettle.labels" $labels | nindent 4 }}
spec:
  # Two pods of a seat would sign twice: the old one is gone before a new one starts.
  replicas: 1
  serviceName: {{ $full }}
  selector:
    matchLabels: {{- include "mettle.labels" $labels | nindent 6 }}
  template:
    metadata:
      labels: {{- include "mettle.labels" $labels | nindent 8 }}
      annotations:
        checksum/settings: {{ $settings | sha256sum }}
    spec:
      automountServiceAccountToken: false
      enableServiceLinks: false
      terminationGracePeriodSeconds: 30
      securityContext:
        runAsNonRoot: true
        runAsUser: 10001
        runAsGroup: 10001
        fsGroup: 10001
        fsGroupChangePolicy: OnRootMismatch
        seccompProfile: {type: RuntimeDefault}
      {{- with $defaults.nodeSelector }}
      nodeSelector: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $defaults.tolerations }}
      tolerations: {{- toYaml . | nindent 8 }}
      {{- end }}
      containers:
        - name: {{ .role }}
          image: "{{ $values.image.repository }}:{{ $values.image.tag | default .root.Chart.AppVersion }}"
          imagePullPolicy: {{ $values.image.pullPolicy }}
          args:
            - {{ .role }}
            - {{ eq .role "miner" | ternary "start" "serve" }}
            - --config=/etc/mettle/settings.toml
            - --metrics=0.0.0.0:{{ $values.metrics.port }}
          ports:
            - {name: metrics, containerPort: {{ $values.metrics.port }}}
            {{- with .seat.peerPort }}
            - {name: peer-udp, containerPort: {{ . }}, protocol: UDP, hostPort: {{ . }}}
            - {name: peer-tcp, containerPort: {{ . }}, protocol: TCP, hostPort: {{ . }}}
            {{- end }}
          # No liveness probe on /health: it says no while the chain is away, and a restart would not bring it back.
          startupProbe:
            tcpSocket: {port: metrics}
            periodSeconds: 5
            failureThreshold: 24
          livenessProbe:
            tcpSocket: {port: metrics}
            periodSeconds: 30
            failureThreshold: 4
          readinessProbe:
            httpGet: {path: /health, port: metrics}
            periodSeconds: 30
          {{- with .seat.resources | default $defaults.resources }}
          resources: {{- toYaml . | nindent 12 }}
          {{- end }}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {drop: [ALL]}
          volumeMounts:
            - {name: data, mountPath: /var/lib/mettle}
            - {name: settings, mountPath: /etc/mettle, readOnly: true}
            - {name: secrets, mountPath: /run/secrets/mettle, readOnly: true}
            - {name: temporary, mountPath: /tmp}
      volumes:
        - name: settings
          configMap: {name: {{ $full }}}
        - name: secrets
          secret: {secretName: {{ .seat.secret }}, defaultMode: 0440}
        - name: temporary
          emptyDir: {}
  volumeClaimTemplates:
    - apiVersion: v1
      kind: PersistentVolumeClaim
      metadata:
        name: data
      spec:
        accessModes: [ReadWriteOncePod]
        {{- with $defaults.storageClass }}
        storageClassName: {{ . }}
        {{- end }}
        resources:
          requests:
            storage: {{ .seat.storage | default $defaults.storage }}
---
{{- if $values.networkPolicy.enabled }}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ $full }}
  labels: {{- include "mettle.labels" $labels | nindent 4 }}
spec:
  podSelector:
    matchLabels: {{- include "mettle.labels" $labels | nindent 6 }}
  # Out to chain, buckets and peers, wherever they are.
  policyTypes: [Ingress]
  ingress:
    - ports:
        - {port: metrics, protocol: TCP}
      from:
        {{- with $values.networkPolicy.metricsFrom }}
        {{- toYaml . | nindent 8 }}
        {{- else }}
        - namespaceSelector: {}
        {{- end }}
    {{- with .seat.peerPort }}
    - ports:
        - {port: {{ . }}, protocol: UDP}
        - {port: {{ . }}, protocol: TCP}
    {{- end }}
---
{{- end }}
{{ end -}}

{{/* The settings file of a seat. Its secrets are files of the Secret. */}}
{{- define "mettle.settings" -}}
{{- $chain := .root.Values.chain -}}
chain = {{ $chain.url | quote }}
{{- with $chain.genesis }}
genesis = {{ . | quote }}
{{- end }}
{{- with $chain.witness }}
chain_witness = {{ . | quote }}
{{- end }}
run = {{ $chain.run | int64 }}
key = "/run/secrets/mettle/hotkey.json"
password_file = "/run/secrets/mettle/password"
directory = "/var/lib/mettle/data"
device = {{ .seat.device | default .root.Values.defaults.device | quote }}
{{ with .seat.store }}
{{- include "mettle.table" (dict "name" "store" "keys" (merge (dict "secret_key_file" "/run/secrets/mettle/store-secret") .)) }}
{{- end }}
{{- include "mettle.table" (dict "name" "serve" "keys" .seat.serve) }}
{{- include "mettle.table" (dict "name" "peer" "keys" .seat.peer) }}
{{- include "mettle.table" (dict "name" "train" "keys" .seat.train) }}
{{- end -}}
