package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// user is nobody in distroless images. OpenShift runs the image as another one.
const user = "65532:65532"

// build writes the layout and returns the index's digest.
func build(o options) (string, error) {
	work, err := os.MkdirTemp("", "image-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(work) }() // a temporary folder that stays is no failure
	if err := os.RemoveAll(o.out); err != nil {
		return "", err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return "", err
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, platform := range o.platforms {
		binary, err := compile(o, platform, work)
		if err != nil {
			return "", err
		}
		img, err := image(o, binary, platform)
		if err != nil {
			return "", err
		}
		if err := writeSBOM(o, img, binary, platform); err != nil {
			return "", err
		}
		goos, goarch, _ := strings.Cut(platform, "/")
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: goos, Architecture: goarch}}})
	}
	index = mutate.Annotations(index, annotations(o)).(v1.ImageIndex)
	path, err := layout.Write(filepath.Join(o.out, "oci"), empty.Index)
	if err != nil {
		return "", err
	}
	if err := path.AppendIndex(index, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": o.version})); err != nil {
		return "", err
	}
	digest, err := index.Digest()
	return digest.String(), err
}

func annotations(o options) map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":       "devicequota",
		"org.opencontainers.image.description": "Device quotas for Dynamic Resource Allocation",
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.source":      "https://github.com/devicequota/devicequota",
		"org.opencontainers.image.version":     o.version,
	}
}

// image returns an image from scratch with the binary and a licence.
func image(o options, binary, platform string) (v1.Image, error) {
	files := map[string]string{"devicequota": binary, "licenses/LICENSE": filepath.Join(o.root, "LICENSE")}
	content, err := archive(o, files)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if img, err = mutate.Append(img, mutate.Addendum{Layer: layer, History: v1.History{
		Author: "devicequota", CreatedBy: "hack/image", Created: v1.Time{Time: o.created}}}); err != nil {
		return nil, err
	}
	goos, goarch, _ := strings.Cut(platform, "/")
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = goos, goarch, v1.Time{Time: o.created}
	config.Config = v1.Config{User: user, Entrypoint: []string{"/devicequota"}, WorkingDir: "/", Labels: annotations(o)}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		return nil, err
	}
	return mutate.Annotations(img, annotations(o)).(v1.Image), nil
}

// archive returns the files as tar, all of them owned by root, at one time, in one order.
func archive(o options, files map[string]string) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	dir := tar.Header{Typeflag: tar.TypeDir, Name: "licenses/", Mode: 0o755, ModTime: o.created, Format: tar.FormatPAX}
	if err := w.WriteHeader(&dir); err != nil {
		return nil, err
	}
	for _, name := range []string{"devicequota", "licenses/LICENSE"} {
		data, err := os.ReadFile(files[name])
		if err != nil {
			return nil, err
		}
		mode := int64(0o644)
		if name == "devicequota" {
			mode = 0o755
		}
		h := tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(data)), ModTime: o.created.Truncate(time.Second), Format: tar.FormatPAX}
		if err := w.WriteHeader(&h); err != nil {
			return nil, err
		}
		if _, err := w.Write(data); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return b.Bytes(), errors.Join(err)
}
