package server

import (
	"context"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ImageFsInfo returns the disk usage of images and writable layers. Both are on one file system,
// which the kubelet detects by their equal mount points.
func (i imageService) ImageFsInfo(context.Context, *cri.ImageFsInfoRequest) (*cri.ImageFsInfoResponse, error) {
	info := i.images.FsInfo()
	usage := func() []*cri.FilesystemUsage {
		return []*cri.FilesystemUsage{{
			Timestamp:  time.Now().UnixNano(),
			FsId:       &cri.FilesystemIdentifier{Mountpoint: info.Mountpoint},
			UsedBytes:  value(info.UsedBytes),
			InodesUsed: value(info.Inodes),
		}}
	}
	return &cri.ImageFsInfoResponse{ImageFilesystems: usage(), ContainerFilesystems: usage()}, nil
}
