package main

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/crisp-cri/crisp/agent/api"
)

// given fetches an object of the agent's own as it was given, with the version that a
// change of it is of.
func (c *cli) given(t target, namespace string) (map[string]any, error) {
	var o map[string]any
	err := c.fetch("/crisp/v1"+pathOf(t.kind, namespace, t.name)+"/given", nil, &o)
	return o, err
}

// change has edit change an object as it was given, and puts it. It returns what that has
// done: "configured", "unchanged".
func (c *cli) change(t target, namespace string, edit func(map[string]any) error) (outcome string, err error) {
	o, err := c.given(t, namespace)
	if err != nil {
		return "", err
	}
	if err := edit(o); err != nil {
		return "", err
	}
	return c.replace(t, namespace, o)
}

func (c *cli) replace(t target, namespace string, o map[string]any) (outcome string, err error) {
	text, err := json.Marshal(o)
	if err != nil {
		return "", err
	}
	resp, err := c.ask(http.MethodPut, pathOf(t.kind, namespace, t.name), nil, text, nil)
	if err != nil {
		return "", fmt.Errorf("%s: %w", t, err)
	}
	defer resp.Body.Close()
	return resp.Header.Get(api.OutcomeHeader), nil
}

// within returns the map at a path of an object, which is made if it is not there.
func within(o map[string]any, path ...string) map[string]any {
	for _, key := range path {
		next, ok := o[key].(map[string]any)
		if !ok {
			next = map[string]any{}
			o[key] = next
		}
		o = next
	}
	return o
}
