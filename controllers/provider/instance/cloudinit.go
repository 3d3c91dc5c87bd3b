package instance

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

// userData resolves spec.cloudInit. A finding says that it cannot be resolved now, which is never a difference to what
// runs; an error is one of the API server.
func userData(ctx context.Context, reader client.Reader, px *v1alpha1.Proxy) ([]byte, *Finding, error) {
	cloudInit := px.Spec.CloudInit
	switch {
	case cloudInit == nil:
		return nil, nil, nil
	case cloudInit.SecretKeyRef == nil:
		return []byte(cloudInit.Inline), nil, nil
	}
	ref := cloudInit.SecretKeyRef
	secret, finding, err := labelledSecret(ctx, reader, px.Namespace, ref.Name, v1alpha1.LabelCloudInit,
		v1alpha1.ReasonCloudInitError, "spec.cloudInit.secretKeyRef")
	if finding != nil || err != nil {
		return nil, finding, err
	}
	data, ok := secret.Data[ref.Key]
	if !ok {
		return nil, &Finding{v1alpha1.ReasonCloudInitError,
			fmt.Sprintf("spec.cloudInit.secretKeyRef.key: Secret %s has no key %s", ref.Name, ref.Key)}, nil
	}
	return data, nil, nil
}

// credentials resolves spec.credentialsSecretRef. The version names the content without telling it: a digest of a password
// in the hash, which viewers of the Proxy see, could be guessed at leisure.
func credentials(ctx context.Context, reader client.Reader, px *v1alpha1.Proxy) (c *providers.Credentials, version string, finding *Finding, err error) {
	ref := px.Spec.CredentialsSecretRef
	if ref == nil {
		return nil, "", nil, nil
	}
	secret, finding, err := labelledSecret(ctx, reader, px.Namespace, ref.Name, v1alpha1.LabelProxyCredentials,
		v1alpha1.ReasonCredentialsNotFound, "spec.credentialsSecretRef")
	if finding != nil || err != nil {
		return nil, "", finding, err
	}
	username, password := secret.Data[v1alpha1.CredentialsUsername], secret.Data[v1alpha1.CredentialsPassword]
	if len(username) == 0 || len(password) == 0 {
		return nil, "", &Finding{v1alpha1.ReasonCredentialsNotFound,
			fmt.Sprintf("spec.credentialsSecretRef: Secret %s must have the keys %s and %s", ref.Name, v1alpha1.CredentialsUsername, v1alpha1.CredentialsPassword)}, nil
	}
	return &providers.Credentials{Username: string(username), Password: string(password)},
		string(secret.UID) + "/" + secret.ResourceVersion, nil, nil
}

// labelledSecret reads a Secret whose owner lets the operator read it. The cache holds no others, and a client without a
// cache must not be laxer.
func labelledSecret(ctx context.Context, reader client.Reader, namespace, name, label, reason, field string) (*corev1.Secret, *Finding, error) {
	secret := &corev1.Secret{}
	err := reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, secret)
	if client.IgnoreNotFound(err) != nil {
		return nil, nil, fmt.Errorf("read Secret %s/%s: %w", namespace, name, err)
	}
	if apierrors.IsNotFound(err) || secret.Labels[label] != "true" {
		return nil, &Finding{reason, fmt.Sprintf("%s: Secret %s does not exist or lacks the label %s=true", field, name, label)}, nil
	}
	return secret, nil, nil
}
