package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"

	"github.com/crisp-cri/crisp/apiserver"
	"github.com/crisp-cri/crisp/apiserver/api"
	"github.com/crisp-cri/crisp/internal/fault"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// dialAgent returns an HTTP client for the agent's socket.
func (c *cli) dialAgent() *http.Client {
	socket := apiserver.SocketOf(c.agentRoot)
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}}
}

// ask sends a request to the agent. The caller closes the response's body.
func (c *cli) ask(method, path string, query url.Values, body []byte) (*http.Response, error) {
	u := url.URL{Scheme: "http", Host: "agent", Path: path, RawQuery: query.Encode()}
	req, err := http.NewRequestWithContext(c.ctx, method, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if method == http.MethodPatch {
		req.Header.Set("Content-Type", string(types.MergePatchType))
	}
	resp, err := c.dialAgent().Do(req)
	if err != nil {
		if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EACCES) {
			if inner, ok := errors.AsType[*net.OpError](err); ok {
				err = inner
			}
			return nil, fault.Unavailable.Errorf("agent is not reachable: %v", err)
		}
		return nil, err
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, refusal(resp)
}

// refusal returns the error in the agent's response.
func refusal(resp *http.Response) error {
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	var status metav1.Status
	if json.Unmarshal(data, &status) != nil || status.Message == "" {
		if resp.StatusCode == http.StatusNotFound { // an agent without this endpoint
			return fault.NotFound.Errorf("agent: %s: %s", resp.Status, strings.TrimSpace(string(data)))
		}
		return fmt.Errorf("agent: %s: %s", resp.Status, strings.TrimSpace(string(data)))
	}
	switch status.Reason {
	case metav1.StatusReasonNotFound:
		return fault.NotFound.Errorf("%s", status.Message)
	case metav1.StatusReasonInvalid:
		return &exitError{exitInvalid, status.Message}
	case metav1.StatusReasonServiceUnavailable:
		return fault.Unavailable.Errorf("%s", status.Message)
	case metav1.StatusReasonConflict:
		return fault.WrongState.Errorf("%s", status.Message)
	}
	return errors.New(status.Message)
}

// send sends a request, with body as JSON unless it is nil, and decodes the response into to unless
// that is nil.
func (c *cli) send(method, path string, query url.Values, body, to any) (http.Header, error) {
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return nil, err
		}
	}
	resp, err := c.ask(method, path, query, text)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if to == nil {
		return resp.Header, nil
	}
	return resp.Header, json.NewDecoder(resp.Body).Decode(to)
}

// fetch decodes the response to a GET.
func (c *cli) fetch(path string, query url.Values, to any) error {
	_, err := c.send(http.MethodGet, path, query, nil, to)
	return err
}

// agentRuns reports whether an agent answers that uses our runtime.
func (c *cli) agentRuns() bool {
	var config struct {
		Kubelet struct {
			Endpoint string `json:"containerRuntimeEndpoint"`
		} `json:"kubeletconfig"`
	}
	return c.fetch("/configz", nil, &config) == nil && config.Kubelet.Endpoint == c.endpoint
}

// pathOf returns the API's path of an object. Without a name it is that of all objects of the kind
// in the namespace, and without a namespace that of all namespaces.
func pathOf(k api.Kind, namespace, name string) string {
	path := k.Path()
	if k.Namespaced && namespace != "" {
		path += "/namespaces/" + namespace
	}
	path += "/" + k.Plural
	if name != "" {
		path += "/" + name
	}
	return path
}

// objects lists objects of a kind.
func (c *cli) objects(k api.Kind, namespace string, query url.Values) ([]unstructured.Unstructured, error) {
	list := unstructured.UnstructuredList{}
	if err := c.fetch(pathOf(k, namespace, ""), query, &list); err != nil {
		return nil, err
	}
	return list.Items, nil
}
