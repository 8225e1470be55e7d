"""The corpus: architectures whose workloads a cost model may learn from before anybody names a network.

All are built from their configurations with random weights by `transformers`, so nothing is downloaded. They
are small on purpose (images of 32 to 96 pixels, texts of 16 to 128 tokens, few equal layers): a program of
them takes some 0.01 to 10 ms, so that thousands can be measured in a night, and layers that repeat add no
workload. The shapes are those of the architectures at that size. Standard library only.

A change of this list is another corpus: a daemon that collects from it chooses its workloads anew.
"""

from __future__ import annotations

from typing import Final

#: What stands for all of them among the names of networks.
CORPUS_NAME: Final = "corpus"

_VIT = "hidden_size=192,num_attention_heads=3,intermediate_size=768,num_hidden_layers=2"
_BERT = "num_hidden_layers=2,vocab_size=8192"

#: Convolutional networks for images: plain, grouped, depthwise and transposed convolutions.
_CONVOLUTIONAL: Final = (
    "resnet,image_size=64",
    "resnet,image_size=48,embedding_size=32,layer_type=basic",
    "regnet,image_size=64",
    "regnet,image_size=96,batch=2",
    "bit,image_size=64",
    "convnext,image_size=64",
    "convnext,image_size=96",
    "convnextv2,image_size=64",
    "poolformer,image_size=64",
    "mobilenet_v1,image_size=96",
    "mobilenet_v1,image_size=64,batch=4",
    "mobilenet_v2,image_size=96",
    "mobilenet_v2,image_size=64,depth_multiplier=0.5",
    "efficientnet,image_size=96,width_coefficient=1.0,depth_coefficient=1.0,hidden_dim=1280",
    "hgnet_v2,image_size=64",
    "textnet,image_size=64",
    "pp_lcnet,image_size=64",
    "focalnet,image_size=64",
)
#: Networks for images and videos with attention.
_ATTENTIVE: Final = (
    "mobilevit,image_size=96",
    "mobilevit,image_size=64,batch=2",
    "swiftformer,image_size=64",
    "cvt,image_size=64",
    "levit,image_size=64",
    "pvt,image_size=64",
    "pvt_v2,image_size=64",
    "segformer,image_size=64",
    "swin,image_size=96,embed_dim=48,window_size=3",
    f"vit,image_size=64,{_VIT}",
)
CORPUS: Final = tuple(f"transformers:{one}" for one in (*_CONVOLUTIONAL, *_ATTENTIVE))
