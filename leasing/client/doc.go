// Package client leases proxies for crawlers, keeps the leases alive, and sends requests through them.
//
//	c, err := client.New("http://discovery.example:8090", client.Options{Token: client.TokenFile("/var/run/token")})
//	lease, err := c.Acquire(ctx, client.Request{Selector: map[string]string{"geo": "eu"}, Targets: []string{"shop.example"}})
//	defer lease.Close(ctx)
//	web := &http.Client{Transport: lease.Transport()}
//	response, err := web.Get("https://shop.example/")
//
// A lease is renewed in the background until Close. When it is lost nevertheless (it was revoked, its proxy was replaced, or
// nobody answered for too long), Done is closed, Err says why, requests under way through Transport are broken off and new
// ones refused: from then on the address may be somebody else's.
//
// Time is measured by the monotonic clock of this process, from the moment at which a request was sent. No clock of another
// machine is ever compared with it.
//
// The package imports the standard library only. Package kube has the same for crawlers in the cluster that lease by
// ProxyLease objects.
package client
