package leasing

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

// SecretCredentials reads credentials from Secrets that carry the label crawl.example.com/proxy-credentials=true. Secrets
// without it are not there, whatever the reader sees.
type SecretCredentials struct{ Reader client.Reader }

// Read implements Credentials.
func (c SecretCredentials) Read(ctx context.Context, namespace, name string) (username, password string, err error) {
	secret := &corev1.Secret{}
	err = c.Reader.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, secret)
	if apierrors.IsNotFound(err) || err == nil && secret.Labels[v1alpha1.LabelProxyCredentials] != "true" {
		return "", "", fmt.Errorf("secret %s/%s does not exist or lacks the label %s=true", namespace, name, v1alpha1.LabelProxyCredentials)
	}
	if err != nil {
		return "", "", fmt.Errorf("read secret %s/%s: %w", namespace, name, err)
	}
	username, password, err = v1alpha1.ParseCredentials(secret.Data)
	if err != nil {
		return "", "", fmt.Errorf("secret %s/%s: %w", namespace, name, err)
	}
	return username, password, nil
}
