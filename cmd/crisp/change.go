package main

import (
	"fmt"
	"net/http"

	"github.com/crisp-cri/crisp/apiserver/api"
)

// given returns an object of the local API as it was applied, with its current version.
func (c *cli) given(t chosen) (map[string]any, error) {
	var o map[string]any
	err := c.fetch("/crisp/v1"+t.path()+"/given", nil, &o)
	return o, err
}

// change edits an object as it was applied, and puts it. It returns the outcome: "configured",
// "unchanged".
func (c *cli) change(t chosen, edit func(map[string]any) error) (outcome string, err error) {
	o, err := c.given(t)
	if err != nil {
		return "", err
	}
	if err := edit(o); err != nil {
		return "", err
	}
	return c.replace(t, o)
}

func (c *cli) replace(t chosen, o map[string]any) (outcome string, err error) {
	header, err := c.send(http.MethodPut, t.path(), nil, o, nil)
	if err != nil {
		return "", fmt.Errorf("%s: %w", t, err)
	}
	return header.Get(api.OutcomeHeader), nil
}

// within returns the map at a path of an object. It makes missing maps.
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
