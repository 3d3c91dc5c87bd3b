# shellcheck shell=bash
# etcd, kube-apiserver, kube-controller-manager, kube-scheduler. Sourced, never run.

start_etcd() {
	local pki=$STATE/pki
	daemon etcd "" -- "$ETCD" \
		--name default --data-dir "$STATE/etcd" --log-level warn \
		--listen-client-urls "https://127.0.0.1:$ETCD_PORT" --advertise-client-urls "https://127.0.0.1:$ETCD_PORT" \
		--listen-peer-urls "http://127.0.0.1:$ETCD_PEER_PORT" --initial-advertise-peer-urls "http://127.0.0.1:$ETCD_PEER_PORT" \
		--initial-cluster "default=http://127.0.0.1:$ETCD_PEER_PORT" \
		--cert-file "$pki/etcd.crt" --key-file "$pki/etcd.key" --client-cert-auth --trusted-ca-file "$pki/etcd-ca.crt"
}

start_apiserver() {
	local pki=$STATE/pki
	daemon kube-apiserver "" -- "$KUBE_APISERVER" \
		--bind-address "$NODE_IP" --advertise-address "$NODE_IP" --secure-port "$API_PORT" \
		--etcd-servers "https://127.0.0.1:$ETCD_PORT" --etcd-cafile "$pki/etcd-ca.crt" \
		--etcd-certfile "$pki/etcd-client.crt" --etcd-keyfile "$pki/etcd-client.key" \
		--tls-cert-file "$pki/kube-apiserver.crt" --tls-private-key-file "$pki/kube-apiserver.key" \
		--client-ca-file "$pki/ca.crt" \
		--authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction --allow-privileged=true \
		--service-account-issuer https://kubernetes.default.svc.cluster.local \
		--service-account-key-file "$pki/service-accounts.pub" --service-account-signing-key-file "$pki/service-accounts.key" \
		--kubelet-certificate-authority "$pki/ca.crt" --kubelet-preferred-address-types InternalIP \
		--kubelet-client-certificate "$pki/kube-apiserver-kubelet-client.crt" --kubelet-client-key "$pki/kube-apiserver-kubelet-client.key" \
		--requestheader-client-ca-file "$pki/front-proxy-ca.crt" --requestheader-allowed-names front-proxy-client \
		--requestheader-username-headers X-Remote-User --requestheader-group-headers X-Remote-Group \
		--requestheader-extra-headers-prefix X-Remote-Extra- \
		--proxy-client-cert-file "$pki/front-proxy-client.crt" --proxy-client-key-file "$pki/front-proxy-client.key" \
		--service-cluster-ip-range "$SERVICE_CIDR" --profiling=false
}

apiserver_ready() { kube get --raw /readyz; }

start_controllers() {
	local pki=$STATE/pki
	daemon kube-controller-manager "" -- "$KUBE_CONTROLLER_MANAGER" \
		--bind-address 127.0.0.1 --secure-port "$CONTROLLER_MANAGER_PORT" --leader-elect=false --profiling=false \
		--kubeconfig "$pki/kube-controller-manager.kubeconfig" --use-service-account-credentials=true \
		--authentication-kubeconfig "$pki/kube-controller-manager.kubeconfig" \
		--authorization-kubeconfig "$pki/kube-controller-manager.kubeconfig" \
		--service-account-private-key-file "$pki/service-accounts.key" --root-ca-file "$pki/ca.crt" \
		--cluster-signing-cert-file "$pki/ca.crt" --cluster-signing-key-file "$pki/ca.key" \
		--flex-volume-plugin-dir "$STATE/kubelet/volume-plugins" \
		--cluster-cidr "$POD_CIDR" --allocate-node-cidrs=false
	daemon kube-scheduler "" -- "$KUBE_SCHEDULER" \
		--bind-address 127.0.0.1 --secure-port "$SCHEDULER_PORT" --leader-elect=false --profiling=false \
		--kubeconfig "$pki/kube-scheduler.kubeconfig" --authentication-kubeconfig "$pki/kube-scheduler.kubeconfig" \
		--authorization-kubeconfig "$pki/kube-scheduler.kubeconfig"
}
