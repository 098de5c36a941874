"""What the operator allows, and the one question that everything else asks: `decide()`. Pure.

`model` is the shape of a policy file, `decide` the answer for one tool and one caller.
"""
