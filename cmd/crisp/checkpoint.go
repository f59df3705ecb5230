package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// runCheckpoint has the runtime write a checkpoint archive of a container.
func runCheckpoint(c *cli, args []string) error {
	var namespace, container string
	fs := c.flags("checkpoint")
	namespaceFlag(fs, &namespace)
	containerFlag(fs, &container)
	rest, err := c.parse(fs, args)
	if err != nil {
		return err
	}
	if len(rest) != 1 {
		return usageError("checkpoint takes the name of one pod")
	}
	_, f, err := c.connectToPod(namespace, rest[0])
	if err != nil {
		return err
	}
	status, err := c.container(f, container)
	if err != nil {
		return err
	}
	resp, err := c.ask(http.MethodPost, "/checkpoint/"+f.Pod.Namespace+"/"+f.Pod.Name+"/"+status.Name, nil, nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var answer struct{ Items []string }
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&answer); err != nil {
		return err
	}
	for _, path := range answer.Items {
		fmt.Fprintln(c.stdout, path)
	}
	return nil
}
