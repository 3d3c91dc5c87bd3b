package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"time"

	"crawl.example.com/egress-proxies-operator/leasing/client"
)

// A crawler leases a proxy, fetches a page through it, and tells when the site has had enough of it.
func Example() {
	ctx := context.Background()
	c, err := client.New("http://discovery.example:8090", client.Options{Token: client.TokenFile("/var/run/secrets/leasing/token")})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	lease, err := c.Acquire(ctx, client.Request{
		Selector: map[string]string{"geo": "eu"},
		Targets:  []string{"shop.example"},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = lease.Close(ctx) }()

	web := &http.Client{Transport: lease.Transport(), Timeout: time.Minute}
	answer, err := web.Get("https://shop.example/")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode == http.StatusTooManyRequests {
		err := lease.Report(ctx, client.Target(answer.Request.URL), client.RateLimited, client.RetryAfter(answer.Header))
		if err != nil {
			log.Print(err)
		}
	}
}

// Work that goes on for long takes another lease when one is lost, or when its proxy is to become empty.
func ExampleLease_Done() {
	crawl := func(ctx context.Context, c *client.Client, pages <-chan string) error {
		lease, err := c.Acquire(ctx, client.Request{Pool: "eu"})
		if err != nil {
			return err
		}
		defer func() { _ = lease.Close(ctx) }()
		web := &http.Client{Transport: lease.Transport()}
		for !lease.Draining() {
			select {
			case page := <-pages:
				answer, err := web.Get(page)
				if err != nil {
					return err // errors.Is(err, client.ErrLost) when that is why
				}
				_ = answer.Body.Close()
			case <-lease.Done():
				return lease.Err()
			}
		}
		return nil // the caller calls again
	}
	_ = crawl
}

// Errors of Acquire are told apart with errors.Is; an *Error says more.
func ExampleClient_Acquire_errors() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := client.New("http://discovery.example:8090", client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	lease, err := c.Acquire(ctx, client.Request{Targets: []string{"shop.example"}, Wait: client.NoWait})
	switch e := (*client.Error)(nil); {
	case errors.Is(err, client.ErrNoProxy) && errors.As(err, &e):
		log.Printf("nothing is free (%s), again in %v", e.Reason, e.RetryAfter)
	case errors.Is(err, client.ErrForbidden), errors.Is(err, client.ErrUnauthorized):
		log.Fatal("look at the token: ", err)
	case err != nil:
		log.Fatal(err)
	default:
		_ = lease.Close(ctx)
	}
}

func ExampleError() {
	var err error = &client.Error{Status: 503, Code: "no_proxy_available", Reason: "Cooling", Detail: "All proxies that fit cool for shop.example", RetryAfter: time.Minute}
	fmt.Println(errors.Is(err, client.ErrNoProxy))
	fmt.Println(err)
	// Output:
	// true
	// no_proxy_available (Cooling): All proxies that fit cool for shop.example
}
