# shellcheck shell=bash
# containerd, kubelet, kube-proxy and the CNI network: the node. Sourced, never run.

# write FILE: stdin into the file, only when it differs.
write() {
	cat >"$1.new"
	if cmp -s "$1.new" "$1"; then rm "$1.new"; else mv "$1.new" "$1"; fi
}

# overlay_works: false when the state directory is itself on an overlay (inside some containers).
overlay_works() {
	local dir=$STATE/overlay-test ok=1
	mkdir -p "$dir"/{lower,upper,work,merged}
	if mount -t overlay overlay -o "lowerdir=$dir/lower,upperdir=$dir/upper,workdir=$dir/work" "$dir/merged" 2>/dev/null; then
		umount "$dir/merged"
		ok=0
	fi
	rm -rf "$dir"
	return $ok
}

start_containerd() {
	local device mtu=1500
	mkdir -p "$STATE/cni/conf"
	# A pod that sends larger packets than the way out can carry would depend on ICMP coming back.
	device=$(ip -o -4 route show default | sed -n 's/.* dev \([^ ]*\).*/\1/p;q')
	[ -z "$device" ] || mtu=$(<"/sys/class/net/$device/mtu")
	write "$STATE/cni/conf/10-$NETWORK.conflist" <<-JSON
		{
		  "cniVersion": "0.4.0",
		  "name": "$NETWORK",
		  "plugins": [
		    {
		      "type": "ptp",
		      "ipMasq": false,
		      "mtu": $mtu,
		      "ipam": {
		        "type": "host-local",
		        "dataDir": "$STATE/cni/addresses",
		        "ranges": [[{"subnet": "$POD_CIDR", "gateway": "$NODE_IP"}]],
		        "routes": [{"dst": "0.0.0.0/0"}]
		      }
		    }
		  ]
		}
	JSON
	if [ ! -s "$STATE/snapshotter" ]; then
		if overlay_works; then echo overlayfs; else echo native; fi >"$STATE/snapshotter"
	fi
	# restrict_oom_score_adj: some sandboxes lack CAP_SYS_RESOURCE; elsewhere it changes nothing that matters here.
	# netns_mounts_under_state_dir: so that the namespaces of our pods are told apart from anybody else's.
	write "$STATE/containerd.toml" <<-TOML
		version = 2
		root = "$STATE/containerd"
		state = "$RUN/containerd"
		disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.internal.v1.tracing"]
		[grpc]
		  address = "$CONTAINERD_SOCKET"
		[plugins."io.containerd.grpc.v1.cri"]
		  sandbox_image = "localhost/pause:1"
		  stream_server_address = "127.0.0.1"
		  restrict_oom_score_adj = true
		  netns_mounts_under_state_dir = true
		  [plugins."io.containerd.grpc.v1.cri".containerd]
		    snapshotter = "$(<"$STATE/snapshotter")"
		    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
		      runtime_type = "io.containerd.runc.v2"
		      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
		        Root = "$RUN/runc"
		  [plugins."io.containerd.grpc.v1.cri".cni]
		    bin_dir = "/usr/lib/cni"
		    conf_dir = "$STATE/cni/conf"
	TOML
	daemon containerd "$STATE/containerd.toml $STATE/cni/conf/10-$NETWORK.conflist" -- \
		"$(readlink -f "$(command -v containerd)")" --config "$STATE/containerd.toml" --log-level warn
}

containerd_ready() { ctr_k8s version; }

start_kubelet() {
	local resolv=/etc/resolv.conf
	# A stub resolver on loopback is of no use inside a pod.
	[ ! -r /run/systemd/resolve/resolv.conf ] || resolv=/run/systemd/resolve/resolv.conf
	mkdir -p "$STATE/kubelet" "$STATE/pod-logs"
	# No image garbage collection: images come from files, nothing could pull them again.
	# No node-level cgroup limits or storage isolation: the node shares its machine.
	# No iptables chains: kube-proxy uses nftables, and `down` then has nothing to clean in other tables.
	write "$STATE/kubelet.yaml" <<-YAML
		apiVersion: kubelet.config.k8s.io/v1beta1
		kind: KubeletConfiguration
		address: $NODE_IP
		port: $KUBELET_PORT
		readOnlyPort: 0
		healthzBindAddress: 127.0.0.1
		healthzPort: $KUBELET_HEALTH_PORT
		tlsCertFile: $STATE/pki/kubelet-server.crt
		tlsPrivateKeyFile: $STATE/pki/kubelet-server.key
		authentication:
		  anonymous: {enabled: false}
		  webhook: {enabled: true}
		  x509: {clientCAFile: $STATE/pki/ca.crt}
		authorization: {mode: Webhook}
		clusterDomain: cluster.local
		clusterDNS: [$DNS_IP]
		resolvConf: $resolv
		containerRuntimeEndpoint: unix://$CONTAINERD_SOCKET
		podLogsDir: $STATE/pod-logs
		volumePluginDir: $STATE/kubelet/volume-plugins
		cgroupDriver: cgroupfs
		cgroupRoot: /$CGROUP
		failCgroupV1: false
		failSwapOn: false
		enforceNodeAllocatable: []
		localStorageCapacityIsolation: false
		makeIPTablesUtilChains: false
		imageGCHighThresholdPercent: 100
		imageGCLowThresholdPercent: 99
		evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%, nodefs.inodesFree: 1%}
	YAML
	daemon kubelet "$STATE/kubelet.yaml" -- "$KUBELET" --config "$STATE/kubelet.yaml" --kubeconfig "$STATE/pki/kubelet.kubeconfig" \
		--root-dir "$STATE/kubelet" --cert-dir "$STATE/kubelet/pki" --hostname-override "$NODE_NAME" --node-ip "$NODE_IP"
}

start_kube_proxy() {
	# maxPerCore 0 and zero timeouts: leave the machine's connection tracking settings alone.
	# nodePortAddresses: a NodePort answers on the node's own address, not on the machine's other interfaces.
	write "$STATE/kube-proxy.yaml" <<-YAML
		apiVersion: kubeproxy.config.k8s.io/v1alpha1
		kind: KubeProxyConfiguration
		mode: nftables
		bindAddress: $NODE_IP
		healthzBindAddress: 127.0.0.1:$PROXY_HEALTH_PORT
		metricsBindAddress: 127.0.0.1:$PROXY_METRICS_PORT
		nodePortAddresses: [$NODE_IP/32]
		clusterCIDR: $POD_CIDR
		detectLocalMode: ClusterCIDR
		hostnameOverride: $NODE_NAME
		clientConnection: {kubeconfig: $STATE/pki/kube-proxy.kubeconfig}
		conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
	YAML
	daemon kube-proxy "$STATE/kube-proxy.yaml" -- "$KUBE_PROXY" --config "$STATE/kube-proxy.yaml"
}

# node_ready: the condition alone may date from before a crash, so kubelet and kube-proxy are asked as well.
node_ready() {
	curl --silent --fail "http://127.0.0.1:$KUBELET_HEALTH_PORT/healthz" &&
		curl --silent --fail "http://127.0.0.1:$PROXY_HEALTH_PORT/livez" &&
		[ "$(kube get node "$NODE_NAME" -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}')" = True ]
}
