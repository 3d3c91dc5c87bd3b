# shellcheck shell=bash
# Certificates and kubeconfigs: a throwaway authority per cluster, each component with its usual identity. Sourced, never run.

# The authorities and certificates live as long as the state directory; nobody renews them.
CERT_DAYS=3650

new_key() { openssl ecparam -name prime256v1 -genkey -noout; }

# authority NAME: a self-signed certificate authority.
authority() {
	[ ! -s "$STATE/pki/$1.crt" ] || return 0
	new_key >"$STATE/pki/$1.key"
	openssl req -x509 -new -key "$STATE/pki/$1.key" -days $CERT_DAYS -subj "/CN=egress-cluster-$1" \
		-addext "keyUsage=critical,keyCertSign,cRLSign,digitalSignature" -out "$STATE/pki/$1.crt.new"
	mv "$STATE/pki/$1.crt.new" "$STATE/pki/$1.crt"
}

# certificate NAME AUTHORITY SUBJECT [SUBJECT-ALTERNATIVE-NAMES]: for a server when it has names, for a client always.
certificate() {
	local name=$1 authority=$2 subject=$3 names=${4:-} usage=clientAuth
	[ ! -s "$STATE/pki/$name.crt" ] || return 0
	[ -z "$names" ] || usage=serverAuth,clientAuth
	new_key >"$STATE/pki/$name.key"
	openssl req -new -key "$STATE/pki/$name.key" -subj "$subject" |
		openssl x509 -req -days $CERT_DAYS -CA "$STATE/pki/$authority.crt" -CAkey "$STATE/pki/$authority.key" \
			-set_serial "0x$(openssl rand -hex 8)" -out "$STATE/pki/$name.crt.new" -extfile <(
				echo "basicConstraints=critical,CA:FALSE"
				echo "keyUsage=critical,digitalSignature"
				echo "extendedKeyUsage=$usage"
				[ -z "$names" ] || echo "subjectAltName=$names"
			) 2>/dev/null
	mv "$STATE/pki/$name.crt.new" "$STATE/pki/$name.crt"
}

# write_kubeconfig FILE CERTIFICATE: self-contained, so that the administrator's can be copied elsewhere.
write_kubeconfig() {
	local file=$1 cert=$STATE/pki/$2
	[ ! -s "$file" ] || return 0
	cat >"$file.new" <<-YAML
		apiVersion: v1
		kind: Config
		clusters:
		- name: egress-cluster
		  cluster:
		    server: https://$NODE_IP:$API_PORT
		    certificate-authority-data: $(base64 -w0 <"$STATE/pki/ca.crt")
		users:
		- name: $2
		  user:
		    client-certificate-data: $(base64 -w0 <"$cert.crt")
		    client-key-data: $(base64 -w0 <"$cert.key")
		contexts:
		- name: egress-cluster
		  context: {cluster: egress-cluster, user: $2}
		current-context: egress-cluster
	YAML
	mv "$file.new" "$file"
}

make_pki() {
	mkdir -p "$STATE/pki"
	authority ca
	# The API server's identity towards aggregated API servers.
	authority front-proxy-ca
	certificate front-proxy-client front-proxy-ca /CN=front-proxy-client
	# etcd has an authority of its own: a certificate that opens the API server must not open etcd behind its back.
	authority etcd-ca
	certificate etcd etcd-ca /CN=etcd "IP:127.0.0.1,DNS:localhost"
	certificate etcd-client etcd-ca /CN=kube-apiserver
	certificate kube-apiserver ca /CN=kube-apiserver \
		"IP:$NODE_IP,IP:$API_SERVICE_IP,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local"
	certificate kubelet-server ca "/CN=$NODE_NAME" "IP:$NODE_IP,DNS:$NODE_NAME"
	certificate kube-apiserver-kubelet-client ca /CN=kube-apiserver-kubelet-client
	certificate admin ca /O=system:masters/CN=admin
	certificate kube-controller-manager ca /CN=system:kube-controller-manager
	certificate kube-scheduler ca /CN=system:kube-scheduler
	certificate kubelet ca "/O=system:nodes/CN=system:node:$NODE_NAME"
	certificate kube-proxy ca /CN=system:kube-proxy
	if [ ! -s "$STATE/pki/service-accounts.pub" ]; then
		new_key >"$STATE/pki/service-accounts.key"
		openssl ec -in "$STATE/pki/service-accounts.key" -pubout -out "$STATE/pki/service-accounts.pub" 2>/dev/null
	fi
	local name
	for name in kube-controller-manager kube-scheduler kubelet kube-proxy; do
		write_kubeconfig "$STATE/pki/$name.kubeconfig" "$name"
	done
	write_kubeconfig "$KUBECONFIG_FILE" admin
}
