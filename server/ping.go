package server

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Ping calls the server behind a unix socket as a client would: it shows that connections are
// accepted, calls are answered, and no lock that every call needs is stuck.
func Ping(ctx context.Context, socket string) error {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	client := cri.NewRuntimeServiceClient(conn)
	if _, err := client.Version(ctx, &cri.VersionRequest{}); err != nil {
		return fmt.Errorf("ask for the version: %w", err)
	}
	// No ID is this short or not hexadecimal, so the answer is empty.
	nothing := &cri.ContainerFilter{Id: "watchdog"}
	if _, err := client.ListContainers(ctx, &cri.ListContainersRequest{Filter: nothing}); err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	none := &cri.PodSandboxFilter{Id: "watchdog"}
	if _, err := client.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: none}); err != nil {
		return fmt.Errorf("list sandboxes: %w", err)
	}
	return nil
}
